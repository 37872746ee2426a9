"""Name what the objective has, and write it in words, without torch, which imports slowly."""

from __future__ import annotations

from datamask.config.selection import METRICS, WITHOUT_OBJECTIVE, Selection

SIGNS = {name: "−" if name in ("disf", "pairwise") else "+" for name in METRICS}
"""Signs of the built-in metrics in the objective."""


def metric_name(metric: str) -> str:
    """Return the name of the term that `selection.metric` names; a user's class is imported."""
    if metric in SIGNS:
        return metric
    from datamask.objectives.weighted import load_objective

    return load_objective(metric).name


def indicator_names(selection: Selection) -> tuple[str, ...]:
    """Name the indicators that the objective reads, in the order of its terms."""
    if not (selection.more_terms or selection.has_custom_terms):
        return ()
    from datamask.objectives.groups import GroupBalance  # These import torch.
    from datamask.objectives.weighted import build_terms

    terms = [term.objective for term in build_terms(selection)]
    names = [name for term in terms if isinstance(term, GroupBalance) for name in term.indicators]
    return tuple(dict.fromkeys(names))


def formula(selection: Selection) -> str:
    """Write the objective of the method as Markdown, for the card and the report."""
    if selection.method in WITHOUT_OBJECTIVE:
        return f"none: `{selection.method}` optimises no objective"
    if selection.method == "top_quality":
        return "quality alone"

    def term(factor: str, name: str) -> str:
        scale = f" / range({name})" if selection.scale_terms else ""
        return f"{factor} · {name}{scale}"

    text = f"{term('λ', 'quality')} {SIGNS.get(selection.metric, '+')} "
    text += term("(1 − λ)" + ("" if selection.metric in SIGNS else " · s"), selection.metric)
    names = [selection.metric]
    for extra in selection.more_terms:
        sign = "−" if extra.weight < 0 else "+"
        is_balance = extra.name == "group_balance"
        names.append(f"{extra.options['column']}_balance" if is_balance else extra.name)
        text += f" {sign} {term(f'{abs(extra.weight):g} · s', names[-1])}"
    text += f", λ = {selection.quality_weight:g}"
    if any(name not in SIGNS for name in names) or selection.more_terms:
        text += "; s is +1 for terms to maximise and −1 for terms to minimise"
    if selection.scale_terms:
        text += "; the range of a term is what the best selection by it alone gains over random "
        text += f"documents of the {selection.scope}"
    if selection.method == "greedy" and "disf" in names:
        text += "; disf with mean and deviation of each dimension over the shard"
    return text
