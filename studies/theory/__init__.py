"""The paper's theory (§6), checked instead of cited: every lemma and theorem on random quadratics, the misprints, the pictures.

>>> for finding in check(cases=20, seed=0)[1:4]:
...     print(f"{finding.claim}: {finding.verdict}")
Lemma 2.1: holds
Lemma 2.2: false
Lemma 2.2, corrected: holds as corrected
"""

from __future__ import annotations

from studies.theory.findings import STARTS, Finding, check
from studies.theory.misprints import MISPRINTS, Misprint
from studies.theory.pages import misprint_table, statement_table, table, write
from studies.theory.pictures import draw

__all__ = ["MISPRINTS", "STARTS", "Finding", "Misprint", "check", "draw", "misprint_table", "statement_table", "table", "write"]
