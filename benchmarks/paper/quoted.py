"""The numbers that the paper prints, to stand beside ours. Nothing of them was measured here."""

from __future__ import annotations

SETTINGS = tuple((topology, agents) for agents in (4, 5, 6) for topology in ("star_pure", "chain", "tree"))
"""The nine settings of Table 1, in its order."""

TABLE1: dict[str, dict[str, tuple[float, ...]]] = {
    "ChatGPT": {
        "iou": (0.191, 0.185, 0.178, 0.157, 0.143, 0.133, 0.111, 0.110, 0.119),
        "token_accuracy": (0.314, 0.321, 0.306, 0.249, 0.257, 0.259, 0.192, 0.198, 0.211),
    },
    "DeepSeek": {
        "iou": (0.175, 0.165, 0.178, 0.149, 0.140, 0.156, 0.111, 0.111, 0.125),
        "token_accuracy": (0.292, 0.279, 0.297, 0.251, 0.244, 0.263, 0.198, 0.198, 0.219),
    },
    "HMM / Viterbi": {
        "iou": (0.614, 0.609, 0.607, 0.627, 0.596, 0.622, 0.635, 0.579, 0.637),
        "token_accuracy": (0.755, 0.750, 0.748, 0.762, 0.742, 0.757, 0.766, 0.729, 0.766),
        "edge_similarity": (0.803, 0.796, 0.777, 0.820, 0.804, 0.802, 0.834, 0.811, 0.821),
    },
    "Recursive": {
        "iou": (0.556, 0.451, 0.529, 0.489, 0.385, 0.483, 0.430, 0.306, 0.458),
        "token_accuracy": (0.706, 0.606, 0.686, 0.652, 0.546, 0.642, 0.608, 0.448, 0.632),
    },
    "Semantic-BoW": {
        "iou": (0.305, 0.346, 0.329, 0.267, 0.315, 0.304, 0.247, 0.262, 0.281),
        "token_accuracy": (0.457, 0.517, 0.506, 0.442, 0.465, 0.469, 0.354, 0.380, 0.409),
    },
    "TextTiling": {
        "iou": (0.390, 0.414, 0.402, 0.364, 0.335, 0.397, 0.347, 0.291, 0.374),
        "token_accuracy": (0.513, 0.568, 0.540, 0.474, 0.498, 0.471, 0.428, 0.406, 0.468),
    },
    "Unigram": {
        "iou": (0.730, 0.714, 0.729, 0.635, 0.635, 0.660, 0.615, 0.612, 0.634),
        "token_accuracy": (0.833, 0.834, 0.842, 0.764, 0.766, 0.783, 0.747, 0.744, 0.761),
        "edge_similarity": (0.570, 0.590, 0.530, 0.391, 0.413, 0.379, 0.336, 0.351, 0.332),
    },
    "KGW": {
        "iou": (0.709, 0.696, 0.699, 0.675, 0.652, 0.654, 0.673, 0.656, 0.655),
        "token_accuracy": (0.827, 0.816, 0.819, 0.804, 0.786, 0.787, 0.806, 0.791, 0.791),
        "edge_similarity": (0.603, 0.617, 0.578, 0.505, 0.488, 0.484, 0.461, 0.439, 0.399),
    },
    "IET": {
        "iou": (0.814, 0.830, 0.834, 0.843, 0.839, 0.831, 0.819, 0.840, 0.835),
        "token_accuracy": (0.866, 0.863, 0.867, 0.846, 0.851, 0.832, 0.830, 0.829, 0.818),
        "edge_similarity": (0.929, 0.949, 0.935, 0.945, 0.942, 0.934, 0.912, 0.919, 0.921),
    },
}
"""Table 1: method -> figure -> its nine numbers."""

WINDOW: dict[str, dict[int, float]] = {
    "token_accuracy": {16: 0.810, 64: 0.863, 128: 0.838},
    "iou": {16: 0.816, 64: 0.830, 128: 0.8185},
}
"""§ Sliding-Window Width Sweep: what its text prints (for w = 256 only a range: 0.72-0.80, 0.75-0.79)."""

SPURIOUS: dict[tuple[int, int], float] = {
    (4, 4): 0.863,
    (4, 8): 0.861,
    (4, 12): 0.860,
    (6, 6): 0.829,
    (6, 8): 0.829,
    (6, 14): 0.827,
}
"""§ Robustness to Spurious Registered Keys: (true K, candidate keys) -> TokenAcc."""

TRANSFORMS: dict[str, tuple[float, float, float, float, float]] = {
    "truncation-90": (0.9871, 0.9444, -0.3, -0.8, 2.3),
    "truncation-75": (0.9734, 0.8542, -0.6, -1.5, 2.1),
    "backtranslation-fr": (0.9251, 0.7131, -2.4, -4.4, 0.8),
    "backtranslation-zh": (0.9156, 0.6375, -5.3, -5.6, -3.3),
    "regeneration-10": (0.9741, 0.9118, -5.6, -3.6, -2.4),
}
"""§ Sensitivity to Post-Generation Text Transformations: SemSim, ROUGE-L, ΔTokenAcc, ΔIoU, ΔEdgeSim in %."""

TABLE2: dict[str, dict[str, dict[str, tuple[float, float]]]] = {
    "all_at_once": {
        "baseline": {"clean": (54.33, 12.50), "ids": (4.17, 9.69), "boundaries": (24.54, 9.19)},
        "ours": {"clean": (54.16, 10.47), "ids": (24.45, 10.71), "boundaries": (36.67, 9.54)},
    },
    "step_by_step": {
        "baseline": {"clean": (35.20, 25.51), "ids": (0.00, 10.28), "boundaries": (33.54, 14.41)},
        "ours": {"clean": (33.13, 23.51), "ids": (21.51, 14.71), "boundaries": (37.00, 18.84)},
    },
    "binary_search": {
        "baseline": {"clean": (44.13, 23.98), "ids": (0.00, 3.17), "boundaries": (31.71, 1.59)},
        "ours": {"clean": (42.71, 21.00), "ids": (21.98, 4.45), "boundaries": (35.28, 2.38)},
    },
}
"""Table 2: protocol -> side -> corruption -> AgentAcc, StepAcc in %, on the algorithm-generated logs."""
