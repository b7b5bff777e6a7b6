"""A region: one cascade of an index program, put into a common frame, with what is computed inside its tiles."""

from __future__ import annotations

from dataclasses import dataclass

from redfuser.algebra.nodes import Problem
from redfuser.index.expr import DType, Expr
from redfuser.index.ints import Axis, Int
from redfuser.index.nodes import Program, Reduce


@dataclass(frozen=True, slots=True)
class Result:
    """A tensor that the region gives back.

    ``shape`` are its sizes; element ``index`` (one Int per dimension, over the frame's axes) is ``body``. A body reads
    stages by Load(name, the stage's axes), and inputs. ``axes`` are the frame axes it runs over; when they contain the
    cascade axis (or an axis that no stage has) the result is written by a sweep after the passes.
    """

    name: str
    shape: tuple[Int, ...]
    index: tuple[Int, ...]
    axes: tuple[Axis, ...]
    body: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Region:
    """``problem`` is the cascade; ``producers`` are reductions over other axes that are computed inside a tile.

    A producer is read in a body by Load(name, index); its own ``axes`` are formal: an index may be any expression.
    ``epilogues`` reduce lists of the problem over their slots after the passes; results read them, at their own place in
    the frame.
    The inputs of the program are the tensors of the call.
    """

    program: Program
    problem: Problem
    producers: tuple[Reduce, ...]
    results: tuple[Result, ...]
    epilogues: tuple[Reduce, ...] = ()
