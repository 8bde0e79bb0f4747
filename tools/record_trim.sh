#!/usr/bin/env bash
# Record `statetrim trim` in a real terminal (tmux) of 80 and of 120 columns, interrupted and run again, and in a
# pipe; fail where a line is broken.
#
#     tools/record_trim.sh MODEL TEXT OUT
#
# OUT gets trim-80.txt, trim-120.txt and trim-piped.txt (what stays on the screen), and *.frames (what was on it
# while bars moved).
set -euo pipefail
model=$(realpath "$1") text=$(realpath "$2")
mkdir -p "$3"
out=$(realpath "$3")
work=$(mktemp -d)
terminal="statetrim-$$"
trap 'tmux -L "$terminal" kill-server 2>/dev/null || true; rm -rf "$work"' EXIT
ln -s "$model" "$work/MODEL"
ln -s "$text" "$work/text.jsonl"
flags="--to 100%x50% --text text.jsonl --tokens 8k --limit 2"

screen() { tmux -L "$terminal" capture-pane -p -t pane -S - | sed 's/ *$//'; }

# Type a line, and keep what is on the screen until `ended` is; press Ctrl-C once `$2` is there.
enter() {
  local line=$1 stop=${2:-} before
  before=$(screen | grep -c '^exit code' || true)
  tmux -L "$terminal" send-keys -t pane "$line; echo exit code \$?" Enter
  until [ "$(screen | grep -c '^exit code' || true)" -gt "$before" ]; do
    screen | tail -n 4 >> "$frames"
    if [ -n "$stop" ] && screen | grep -q "$stop"; then
      tmux -L "$terminal" send-keys -t pane C-c
      stop=
    fi
    sleep 0.3
  done
}

for columns in 80 120; do
  frames="$out/trim-$columns.frames"
  : > "$frames"
  tmux -L "$terminal" -f /dev/null new-session -d -s pane -x "$columns" -y 50 -c "$work" "bash --norc --noprofile"
  tmux -L "$terminal" set-option -g history-limit 5000
  tmux -L "$terminal" send-keys -t pane "PS1='\$ '; clear" Enter
  sleep 1
  enter "statetrim trim MODEL $flags -o SMALL-$columns" "^calibrate for the refit"
  enter "statetrim trim MODEL $flags -o SMALL-$columns"
  screen > "$out/trim-$columns.txt"
  tmux -L "$terminal" kill-server
  sleep 1
done
(cd "$work" && statetrim trim MODEL $flags -o SMALL-piped 2>&1 | cat > "$out/trim-piped.txt")

failed=0
refuse() { # a sentence, a pattern, files
  if grep -nE "$2" "${@:3}"; then echo "$1" >&2; failed=1; fi
}
cd "$out"
refuse "a bar and a note in one line" '━.*\.\.\.|\.\.\..*━━' trim-80.frames trim-120.frames
refuse "a bar stays on the screen" '^(in all|calibrating|evaluating|refitting).*━' trim-80.txt trim-120.txt
refuse "a count or a loss that is none" '/\?|nan' trim-*.txt trim-*.frames
refuse "a traceback" 'Traceback|KeyboardInterrupt' trim-*.txt
refuse "codes of a terminal in a pipe" "$(printf '\033')" trim-piped.txt
for columns in 80 120; do
  grep -q 'statetrim: interrupted; what is finished is kept in' "trim-$columns.txt" || { echo "not interrupted" >&2; failed=1; }
  grep -q 'calibrate: done before, kept' "trim-$columns.txt" || { echo "nothing was kept" >&2; failed=1; }
  [ "$(grep '^exit code' "trim-$columns.txt" | tr '\n' ' ')" = "exit code 130 exit code 0 " ] || { echo "exit codes" >&2; failed=1; }
done
exit $failed
