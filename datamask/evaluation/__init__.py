"""Train small language models on selections, to find which selection trains a better one.

`texts` makes the tokenizer and encodes held-out texts, `arms` encodes training texts, `training`
trains one model, `verdict` compares, and `results` gathers it all. Errors about missing, stale and
damaged files are as in `selection`.
"""
