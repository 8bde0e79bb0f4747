"""Programs that the Python of an engine's environment runs, without statetrim.

    PYTHON drivers/ask.py REQUEST.json ANSWER.json DRIVER

A request has `model` (a directory), `dtype`, `texts` to encode, `sequences` of token ids to read,
`prompts` to continue greedily by `generate` tokens, and `options` of the engine. The answer has
`engine` (names and versions), `encoded` (ids of each text, or null if the engine cannot encode),
`choices` (the most likely token after each token of a sequence but the last), `log_probabilities`
of those choices (null where the engine does not report it), and `continuations`.
"""
