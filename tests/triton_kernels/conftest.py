"""Kernels compiled for machines that are not present. Not where Triton interprets: it compiles nothing then."""

import importlib.util
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

possible = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") != "1"
collect_ignore_glob = [] if possible else ["test_*.py"]
