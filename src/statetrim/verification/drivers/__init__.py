"""A file an engine, run as a program by that engine's own Python; statetrim is not there.

    PYTHON drivers/ask_ENGINE.py REQUEST.json ANSWER.json

A request has `model` (a directory), `dtype`, `texts` to encode, `sequences` of token ids to read,
`prompts` to continue by `generate` tokens greedily, and `options` of the engine. The answer has
`engine` (names and versions), `encoded` (ids of each text, or null where the engine cannot),
`choices` (the most likely token after each but the last of a sequence), `log_probabilities` of
those choices (null where the engine does not tell), and `continuations`.
"""
