"""Where a traced node came from: the user's file, line and variable name."""

from __future__ import annotations

import keyword
import os
import re
from pathlib import Path

import torch
import torch.fx as fx

from redfuser.index.nodes import Origin, Where

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = str(Path(__file__).parent)
# Dynamo's names of arguments, of what hangs on them, and of modules among globals
_PREFIX = re.compile(
    r"^([Ll]_+(kwargs_|fn_|args_\d+_(?=.*(modules|parameters|buffers)))?(self_)?|g_(?=.*(parameters|buffers)))"
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in .*\n\s*(?P<text>.*)')


def where_of(node: fx.Node) -> Where | None:
    """The innermost frame of the node's stack trace that is neither torch's nor the front end's own."""
    frames = [f for f in _FRAME.finditer(node.meta.get("stack_trace") or "") if not f["file"].startswith(_HERE)]
    if not frames:
        return None
    last = next((f for f in reversed(frames) if not f["file"].startswith(_TORCH)), frames[-1])
    return Where(last["file"], int(last["line"]), last["text"].strip())


def name_of(node: fx.Node) -> str:
    """The name the user gave the value; for a value without one, its operation's name."""
    given = node.meta.get("user_name")
    if given is None:
        given = node.name
        chain = node.meta.get("from_node") or []
        if chain:
            source = chain[0]
            while source.from_node:
                source = source.from_node[0]
            given = source.name
    return identifier(_unnumbered(given, node))


def _unnumbered(name: str, node: fx.Node) -> str:
    """``matmul_1`` is the second unnamed matmul; the number says nothing to the user."""
    base, _, number = name.rpartition("_")
    op = str(node.target).removeprefix("aten.").partition(".")[0]
    return base if number.isdigit() and base in (op, op.strip("_")) else name


def identifier(text: str) -> str:
    """A readable Python identifier: ``l_self_modules_proj_parameters_weight_`` becomes ``proj_weight``."""
    name = re.sub(r"\W", "_", text)
    name = _PREFIX.sub("", name).strip("_")
    name = re.sub(r"(^|_)(modules|parameters|buffers)_", r"\1", name)
    name = re.sub(r"_+", "_", name) or "value"
    return f"v_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def origin_of(node: fx.Node) -> Origin:
    return Origin(node.name, name_of(node), where_of(node))
