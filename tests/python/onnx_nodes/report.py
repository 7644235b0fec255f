"""The table of results, as the page that keeps it."""

import re
from collections import Counter

PASSED, DEVIATING, LACKING, UNSUPPORTED, FAILED = range(5)


def text(cases, verdicts, took, whole):
    import onnx
    import onnxruntime

    kinds = Counter(kind for kind, _ in verdicts.values())
    same = sum(what == "same" for kind, what in verdicts.values() if kind == PASSED)
    asked = "" if whole else " (a part of them)"
    lines = [
        "# Parity",
        "",
        "The ONNX standard includes tests of every operator: a small model, inputs, and the "
        "expected outputs. This command registers each model, deploys it, calls it over the "
        "[Open Inference Protocol](../reference/open-inference.md) with binary tensors, compares "
        "the outputs within the test's own tolerance, and deletes it. The same models also run in "
        "Python's ONNX Runtime of the same version.",
        "",
        "```console",
        "$ just onnx-node-tests --write docs/evidence/parity.md",
        "```",
        "",
        f"`onnx` {onnx.__version__}, ONNX Runtime {onnxruntime.__version__} on the CPU; "
        f"{len(cases)} tests{asked} in {took:.0f} s.",
        "",
        "| result | tests |",
        "|---|---|",
        f"| passed: the outputs are those of the standard | {kinds[PASSED]} |",
        f"| as ONNX Runtime: Python returns the same outputs, and the standard expects others | {kinds[DEVIATING]} |",
        f"| rejected: a type that Arrow lacks, listed below | {kinds[LACKING]} |",
        f"| unsupported by ONNX Runtime: Python fails too | {kinds[UNSUPPORTED]} |",
        f"| failed | {kinds[FAILED]} |",
        "",
        f"Of the passed tests, {same} are equal to Python's outputs within 1e-5 relative and 1e-7 "
        "absolute.",
        "",
    ]
    lines += section(verdicts, FAILED, "## Failed", "")
    lines += section(
        verdicts,
        DEVIATING,
        "## As ONNX Runtime",
        "ONNX Runtime's own deviations from the standard, and operators that draw random numbers.",
    )
    lines += grouped(
        verdicts,
        LACKING,
        "## Rejected",
        "Rejected when the model is deployed, with a message that names the input or output. Cast "
        "inside the model.",
        "type",
    )
    lines += grouped(
        verdicts,
        UNSUPPORTED,
        "## Unsupported by ONNX Runtime",
        "By the message of Python's ONNX Runtime, shortened.",
        "reason",
    )
    return "\n".join(lines).rstrip() + "\n"


def section(verdicts, kind, title, words):
    found = [(name, what) for name, (of, what) in verdicts.items() if of == kind]
    if not found:
        return []
    rows = [f"| `{name}` | {clean(what)} |" for name, what in found]
    return [title, "", *([words, ""] if words else []), "| test | difference |", "|---|---|", *rows, ""]


def grouped(verdicts, kind, title, words, head):
    groups = {}
    for name, (of, what) in verdicts.items():
        if of == kind:
            groups.setdefault(shorten(what), []).append(name)
    if not groups:
        return []
    rows = []
    for what, names in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        listed = ", ".join(f"`{name}`" for name in names)
        rows.append(f"| {clean(what)} | {len(names)} | {listed} |")
    return [title, "", words, "", f"| {head} | tests | |", "|---|---|---|", *rows, ""]


def shorten(reason):
    """What the reasons of one cause have in common, without paths and the models' own names."""
    if found := re.search(r"Could not find an implementation for (\w+)\(", reason):
        return f"no kernel of {found[1]} for its types or version"
    if found := re.search(r":(\w+)\(-?\d+\) is not a registered function/op", reason):
        return f"no such operator: {found[1]}"
    for sign, short in (
        ("is under development and support for this is limited", "an opset newer than its own"),
        ("Unsupported model IR version", "an IR version newer than its own"),
        ("Failed to construct locale", "the machine lacks the locale en_US.UTF-8"),
        ("Batchwise recurrent operations", "recurrent operators with the batch first"),
    ):
        if sign in reason:
            return short
    plain = re.sub(r"\S*/\S+|\[ONNXRuntimeError\] : \d+ : ", "", reason)
    if found := re.search(r"running (\w+) node", plain):
        return f"{found[1]} refuses the inputs"
    if found := re.search(r"In Node, \S+ (\w+),", plain):
        return f"{found[1]} is not valid as it is used"
    return plain.split(" Status Message: ")[-1].strip()[:120]


def clean(text):
    return (text or "").replace("|", "\\|").replace("\n", " ")
