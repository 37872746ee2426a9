"""Small classifiers with random weights, of transformers and of fastText, and their outputs."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests import windows
from tests.finished import WORDS


def fixed_words(folder: Path) -> Path:
    """A tokenizer of whole words in a folder; one that is trained numbers its pieces by chance."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    words = {word: number for number, word in enumerate([*names, *WORDS])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special: Any = {f"{name.strip('[]').lower()}_token": name for name in names}
    PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(folder)
    return folder


def random_classifier(
    folder: Path, tokenizer: Path, labels: list[str], kind: str | None = None, most: int = 512
) -> str:
    """A BERT with a head for these labels; random weights: texts differ, no class is certain."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    torch.manual_seed(1)
    made = BertForSequenceClassification(
        BertConfig(
            vocab_size=2000,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            initializer_range=0.2,
            id2label=dict(enumerate(labels)),
            label2id={label: place for place, label in enumerate(labels)},
            problem_type=kind,
        )
    )
    made.save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(tokenizer), model_max_length=most).save_pretrained(folder)
    return str(folder)


def outputs(model: str, texts: list[str], max_tokens: int = 512) -> np.ndarray:
    """Return what transformers gives for each text alone."""
    from transformers import AutoTokenizer, BertForSequenceClassification

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    made = BertForSequenceClassification.from_pretrained(model).eval()
    rows = []
    for text in texts:
        features = tokenizer(text, return_tensors="pt", truncation=True, max_length=max_tokens)
        with torch.inference_mode():
            rows.append(made(**features).logits[0].double().numpy())
    return np.stack(rows)


def in_windows(
    model: str, texts: list[str], head: Callable[[torch.Tensor], torch.Tensor]
) -> np.ndarray:
    """The weighted mean over three windows of 8 tokens of what a head makes of the outputs."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    values = []
    for text in texts:
        cut = tokenizer(text, truncation=True, max_length=8, return_offsets_mapping=True)
        held = max(stop for _, stop in cut["offset_mapping"])
        held = held if len(tokenizer(text)["input_ids"]) > 8 else len(text)
        spans = windows.by_hand(text, held, 3)
        made = torch.from_numpy(outputs(model, [text[start:stop] for start, stop in spans], 8))
        values.append(windows.nearest(spans, len(text)) @ head(made).numpy())
    return np.array(values)


LABELS = ["__label__hq", "__label__cc"]
generator = np.random.default_rng(0)
WORD_VECTORS = generator.normal(size=(len(WORDS) + 1, 4)).astype(np.float32)
LABEL_VECTORS = generator.normal(size=(2, 4)).astype(np.float32)


def fasttext_file(
    path: Path,
    known: list[str] = WORDS,
    labels: list[str] = LABELS,
    vectors: np.ndarray = WORD_VECTORS,
    of_labels: np.ndarray = LABEL_VECTORS,
) -> Path:
    """Write a fastText model with these weights, byte by byte (format 12, supervised, softmax).

    *vectors* has a row for the end of the line, then one for each known word.
    """
    words = [(word, 0) for word in ["</s>", *known]] + [(label, 1) for label in labels]
    width, number = vectors.shape[1], len(labels)
    content = struct.pack("<2i", 793712314, 12)
    content += struct.pack("<12id", width, 5, 5, 1, 5, 1, 3, 3, 0, 0, 0, 100, 1e-4)
    content += struct.pack("<3i2q", len(words), len(known) + 1, number, 1000, -1)
    for word, kind in words:
        content += word.encode() + b"\0" + struct.pack("<qb", 10, kind)
    for matrix in (vectors, of_labels):
        content += struct.pack("<?2q", False, *matrix.shape) + matrix.tobytes()
    path.write_bytes(content)
    return path


def probability(text: str) -> float:
    """Of the first label: softmax of the words' mean vector, the end of the line among them."""
    places = [0, *(WORDS.index(word) + 1 for word in text.split() if word in WORDS)]
    logits = LABEL_VECTORS @ WORD_VECTORS[places].mean(axis=0)
    return float(np.exp(logits[0]) / np.exp(logits).sum())
