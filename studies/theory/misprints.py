"""Where the paper's text contradicts itself, its tables or arithmetic, and how one sees it."""

from __future__ import annotations

from typing import NamedTuple


class Misprint(NamedTuple):
    """One place."""

    place: str
    printed: str
    meant: str
    because: str


MISPRINTS = (
    Misprint(
        "§2 training step",
        "W̄ + η∂ℓ/∂W^b",
        "W̄ − η∂ℓ/∂W^b",
        "F = ½(w − 1)², W̄ = −0.5: the gradient is −2, and + moves W̄ further from 1 until it is clipped at −1",
    ),
    Misprint(
        "§2 UpOnly",
        "aux ← β·Sign(W̃) + (1 − β)·aux",
        "aux ← β·W̃ + (1 − β)·aux",
        "as printed it is UpDown (W̃ = 0.2 gives β·1 in both), but Table I has 87.20 against 76.38 on CelebA",
    ),
    Misprint(
        "§3 constants",
        "−5.4092 + 1.3761 ln(M_P − 0.5038) fits û",
        "it fits r = μ̂/w̄",
        "M = 100, one vote: fit −6.374, r = −6.253, û = −2.322; rms error 0.064 against r, 0.779 against û",
    ),
    Misprint(
        "§3 likelihood",
        "the density of w̃",
        "the density of w̄",
        "w̃ is the mean of signs, the same for all: at 50 of 100 votes it is 0, μ̂ = r·w̃ = 0, and all clients lose their own weight",
    ),
    Misprint(
        "§3 exponent",
        "(w̄ − μ)²/σ²",
        "(w̄ − μ)²/2σ²",
        "without the 2 the density sums to 1/√2, and 70 of 100 votes give r = 0.521 with √(u² + 2) in f; "
        "the printed f has √(u² + 4), which gives 0.407",
    ),
    Misprint(
        "§4 FEMNIST MB",
        "264.3 MB a round for 89 clients",
        "2352.5 MB",
        "6,608,026 × 4 B × 89; the printed number is that of ten clients (264.32)",
    ),
    Misprint(
        "§4 CelebA MB",
        "99.2 MB a round for 100 clients",
        "12.4 MB",
        "31,078 × 4 B × 100 = 12.43 MB = 99.45 Mbit: megabits; and BiML's 21.1 down should be 20.7, log2(101) × 3.108",
    ),
    Misprint(
        "§4 batch-norm", "every parameter 1 bit", "batch-norm is real", "γ and β are sent as numbers: 142 channels × 2 in mnist_cnn"
    ),
    Misprint(
        "§6 Lemma 2.2",
        "cos ≥ √(K/N)",
        "for K > 2N/3: cos² ≥ (4/3)(1 − N/3K)",
        "V = (−1, −1), W̄ = (0.01, 1): cos = 0.950, claimed 1; Cauchy–Schwarz is used backwards",
    ),
    Misprint("§6 Lemma 3.1", "K", "2√K", "‖W^b − W*‖ = 2√K: F = ½(w − 3/2)², W^b = −1 has λ = 5, claimed ≤ 3"),
    Misprint(
        "§6 form B of φ",
        "no 1/β",
        "form A's 1/β",
        "F = 2(w − 5/4)², W̄ = −0.5: φ = 0.883, and η = 0.5 takes ‖W̄ − W*‖² from 2.25 to 9",
    ),
    Misprint(
        "§6 both forms of φ",
        "arctan(1/λ)",
        "arcsin(1/λ)",
        "‖g − v‖ = ε and ‖g‖ = λε allow an angle of arcsin(1/λ); "
        "F = ½‖w − (0.9, 0.01, 0.01)‖², W̄ = (−0.01, 0.01, 0.01): φ > 0, yet every step leads away from W*",
    ),
    Misprint(
        "§6 Theorem 1",
        "K_t < K_0 + κ from T_0 on, K_0 = (β − ξ)N/β",
        "until φ < 2η; later steps are not covered",
        "φ > 0 needs λ too, and at K = 0 no η is allowed: F = ½‖w − ⅓·1‖², N = 3 keeps one weight wrong for ever, claimed none",
    ),
    Misprint(
        "§6 T_0",
        "O(log 1/(K_0 + κ))",
        "O(log ‖W̄₀ − W*‖²/(K_0 + κ))",
        "K counts elements: for K_0 + κ > 1 the printed logarithm is negative",
    ),
    Misprint(
        "§6 Theorem 2",
        "T_0 = O((1/M)·…)",
        "M divides the noise: a term η²Nσ²/M",
        "without noise all clients are copies: T_0 is the same for M = 1 and 100",
    ),
)
