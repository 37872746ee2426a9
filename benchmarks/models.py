"""Embedding models with random weights and a vocabulary from given texts, without a network.

Such a model has the cost of a trained model of the same shape; its embeddings have no meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def random_bert(
    folder: Path, texts: Iterable[str], *, hidden: int, layers: int, vocabulary: int = 2000
) -> Path:
    """Write a BERT with mean pooling for sentence-transformers, with fixed weights.

    Args:
        folder: created.
        texts: from which the WordPiece vocabulary is learned.
        hidden: width of a token and of an embedding; a multiple of 16.
        layers: of the transformer.
        vocabulary: most word pieces.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer = normalizers.BertNormalizer()
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False
    )
    pieces.train_from_iterator(texts, trainer)
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=pieces, model_max_length=512, **names)
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=max(hidden // 64, 2),
            intermediate_size=4 * hidden,
        )
    )
    for part in (model, tokenizer):
        part.save_pretrained(folder / "bert")
    modules = [Transformer(str(folder / "bert")), Pooling(hidden, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"))
    return folder / "model"
