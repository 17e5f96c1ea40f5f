"""Other processors than this one, emulated: the libraries that choose their loops by processor are told what they may use.

python -m tests.processors old pytest -m floats      # any command, as on a processor without AVX
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

_CACHES = Path(__file__).parent / "__pycache__"
EMULATED = platform.machine() in ("x86_64", "AMD64")
PROCESSORS: dict[str, dict[str, str]] = {
    "old": {  # SSE4 and nothing later: no fused multiply-add, other lengths of vectors, so other orders of sums
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA",
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CACHE_DIR": str(_CACHES / "numba-old"),
    },
    "avx2": {  # nothing beyond AVX2, on processors that have more
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4",
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx2,+fma,+bmi,+bmi2,+lzcnt,+movbe,+popcnt,+sse4.2",
        "NUMBA_CACHE_DIR": str(_CACHES / "numba-avx2"),
    },
    "own": {},  # what this machine has
}


def environment(processor: str) -> dict[str, str]:
    """The environment of a process that computes as on that processor, whatever this one is told."""
    emulation = {name for settings in PROCESSORS.values() for name in settings}
    return {name: value for name, value in os.environ.items() if name not in emulation} | PROCESSORS[processor]


if __name__ == "__main__":
    if not EMULATED:
        sys.exit(print("this is no x86-64 processor, it cannot compute as an older one: skipped"))
    sys.exit(subprocess.run(sys.argv[2:], env=environment(sys.argv[1]), check=False).returncode)
