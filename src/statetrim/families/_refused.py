"""Why some linear-attention models, or some axes of them, cannot be pruned; texts for messages."""

GATE_RANK_REFUSAL = (
    "the decay gate and the output gate are products of two matrices, and the value width is their "
    "inner rank, so fewer value channels would change the gates as well"
)
ONE_WIDTH_REFUSAL = (
    "one config field sets the width of queries, keys and values together, so a stock config "
    "cannot say that only keys shrink, and the inner rank of its two gates as well, so that "
    "a square cut would change the gates; whole heads can go instead: --to 8heads"
)
_HEADS_FROM_WIDTH = (
    "fla computes the number of heads from the widths, so a narrower key changes the head count"
)
_ROTARY = (
    "rotary frequencies are computed from the key width, so a narrower key is another function"
)
_SHARED_NORM = (
    "a norm weight over key channels is shared by all heads, so all must keep the same ones"
)

_MAMBA_1 = (
    "its Mamba-1 layers have a decay for every number of the state and no heads; only the heads of "
    "Mamba-2 can be cut"
)
_VECTOR_STATE = "its state is one number per channel, not a matrix of keys and values"
_CONVOLUTION_ONLY = "beside softmax layers it keeps inputs of convolutions, not a recurrent state"
_UNSERVED = "no engine serves it"
_SLOTS = "a softmax addresses the slots of its state, so that none can be dropped alone"

REFUSED: dict[str, str] = {  # model type -> reason
    "bailing_hybrid": (
        "its config sets the width and the number of heads of linear and softmax layers together, "
        "so a stock config cannot say that the linear layers alone shrink"
    ),
    "kimi_k3": "transformers has no code for it, so a cut could not be calibrated or checked",
    "minimax": "'head_dim' is shared with its softmax layers, so linear layers cannot shrink alone",
    "mesa_net": "fla's kernel requires keys as wide as values",
    "rwkv7": _HEADS_FROM_WIDTH,
    "hgrn2": _HEADS_FROM_WIDTH,
    "retnet": _ROTARY,
    "mamba3": _ROTARY,
    "cyclic_flow_attention": _SHARED_NORM,
    "raven": _SHARED_NORM,
    "mamba": _MAMBA_1,
    "falcon_mamba": _MAMBA_1,
    "jamba": _MAMBA_1,
    "zamba": _MAMBA_1,
    "samba": _MAMBA_1,
    "rwkv": _VECTOR_STATE,
    "recurrent_gemma": _VECTOR_STATE,
    "hgrn": _VECTOR_STATE,
    "lfm2": _CONVOLUTION_ONLY,
    "lfm2_moe": _CONVOLUTION_ONLY,
    "lfm2_vl": _CONVOLUTION_ONLY,
    "zaya": _CONVOLUTION_ONLY,
    "inkling": _CONVOLUTION_ONLY,
    "lightnet": _UNSERVED,
    "log_linear_mamba2": _UNSERVED,
    "mom": _UNSERVED,
    "gsa": _SLOTS,
    "abc": _SLOTS,
    "rodimus": "one projection makes its input and decay gates; a cut of it was not worked out",
    "linear_attn": "its feature maps mix the channels of a head, so none can be dropped alone",
}
