"""Training small language models on selections, to tell which of them trains a better one.

`texts` makes the tokenizer and encodes what is held out, `arms` encodes what is trained on,
`training` trains one model, `verdict` compares, and `results` gathers it all. Errors about missing,
stale and damaged files are those of `selection`.
"""
