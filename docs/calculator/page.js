// The page of the calculator: reads the form, calls `calculator`, shows bars and commands.
(() => {
  const form = document.getElementById("calculator-form");
  if (!form) return;
  const result = document.getElementById("calculator-result");
  const command = document.getElementById("calculator-command");

  const options = (select, names) => {
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(chosen)) select.value = chosen;
  };
  const number = (name, least) => Math.max(least, Number(form.elements[name].value) || least);
  const shown = (n) => (n % 1 ? n.toFixed(1) : String(n));
  const prefix = (tokens, context) =>
    !tokens ? "none" : `${tokens} ${tokens === 1 ? "token" : "tokens"}${tokens < context ? "" : ", never"}`;

  function settings() {
    return {
      ...calculator.defaults,
      memory: Math.floor(number("memory", 0.001) * 2 ** 30),
      context: Math.floor(number("context", 1)),
      kv_bytes: calculator.kvBytes[form.elements.engine.value][form.elements.kv.value],
      speculative: Math.min(64, Math.floor(number("speculative", 0))),
      devices: Number(form.elements.devices.value),
      prefix_caching: form.elements.prefix.checked,
    };
  }

  // Name, caches and bytes of a number of the state: as released, 16-bit, cut, by layer, both.
  function variants(model, engine) {
    const released = model.state_bytes[engine];
    const narrow = ["vllm", "sglang"].includes(engine) && released > 2;
    return [
      [`as released, ${model.shape}`, model.released, released],
      narrow && ["16-bit state", model.released, 2],
      model.cut && [`cut to ${model.cut_shape}`, model.cut, released],
      model.by_layer && engine === "vllm" && ["by layer, a quarter whole", model.by_layer, released],
      model.cut && narrow && ["cut and 16-bit", model.cut, 2],
    ].filter(Boolean);
  }

  function commandLine(engine, chosen) {
    const kv = form.elements.kv.value, drafts = chosen.speculative, tp = chosen.devices;
    const parts = {
      vllm: ["vllm serve MODEL", kv === "fp8" && "--kv-cache-dtype fp8",
        drafts && `--speculative-config '{"method":"mtp","num_speculative_tokens":${drafts}}'`,
        tp > 1 && `--tensor-parallel-size ${tp}`, !chosen.prefix_caching && "--no-enable-prefix-caching",
        `--max-model-len ${chosen.context}`],
      sglang: ["python -m sglang.launch_server --model-path MODEL", kv === "fp8" && "--kv-cache-dtype fp8_e4m3",
        drafts && `--speculative-algorithm NEXTN --speculative-num-steps ${drafts}`,
        tp > 1 && `--tp ${tp}`, !chosen.prefix_caching && "--disable-radix-cache"],
      llamacpp: ["llama-server -m model.gguf", kv === "q8_0" && "-ctk q8_0 -ctv q8_0",
        `-c ${chosen.context}`, !chosen.prefix_caching && "--ctx-checkpoints 0"],
      mlx: ["mlx_lm.server --model MODEL"],
    };
    const bits = { vllm: "--mamba-ssm-cache-dtype bfloat16", sglang: "--mamba-ssm-dtype bfloat16" }[engine];
    return parts[engine].filter(Boolean).join(" ") + (bits ? `\n# 16-bit state: ${bits}` : "");
  }

  function show() {
    const model = calculator.models[form.elements.model.value];
    const engine = form.elements.engine.value;
    options(form.elements.kv, Object.keys(calculator.kvBytes[engine]));
    const heads = model.released.states[0].heads;
    options(form.elements.devices, [1, 2, 4, 8].filter((n) => heads % n === 0).map(String));
    const chosen = settings();
    const rows = variants(model, engine).map(([name, caches, bytes]) =>
      [name, calculator.engines[engine](caches, { ...chosen, state_bytes: bytes })]);
    const first = rows[0][1].sequences, most = Math.max(...rows.map(([, fit]) => fit.sequences), 1e-9);
    result.replaceChildren(...rows.map(([name, fit]) => {
      const row = document.createElement("tr");
      const gain = first > 0 ? `${(fit.sequences / first).toFixed(2)}x` : "from none";
      const cells = [name, shown(fit.sequences), gain, `${fit.states} x ${(fit.state_bytes / 2 ** 20).toFixed(1)} MiB`,
        prefix(fit.shortest_prefix, chosen.context)];
      row.append(...cells.map((text, i) => {
        const cell = document.createElement(i ? "td" : "th");
        if (!i) cell.scope = "row";
        cell.textContent = text;
        return cell;
      }));
      const bar = document.createElement("span");
      bar.className = "calculator-bar";
      bar.style.width = `${(100 * fit.sequences) / most}%`;
      bar.setAttribute("aria-hidden", "true");
      row.children[1].append(bar);
      return row;
    }));
    command.textContent = commandLine(engine, chosen);
  }

  options(form.elements.model, Object.keys(calculator.models));
  form.elements.model.value = "Qwen3.5-27B";
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
})();
