"""K-FAC on a small network, with every curvature block built as a dense matrix: the slow twin of
``cbs.optimizers.kfac.KFAC``.

The network maps a token t to ``y = E (c * tanh(W [E_t; 1]))`` with E ``[tokens, width]`` used as embedding and head, W
``[width, width + 1]`` and c ``[width]``; its loss is half the squared distance of y from a target.
"""

from __future__ import annotations

import numpy as np


class KfacTwin:
    """E, W and c under K-FAC, in float64; :meth:`step` takes all examples and the vectors of the curvature."""

    def __init__(
        self,
        weights: dict[str, np.ndarray],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        damping: float,
        kl_clip: float,
        decay: float,
        factor_interval: int,
        inverse_interval: int,
    ) -> None:
        self.w = {name: np.array(value, dtype=np.float64) for name, value in weights.items()}
        self.m = {name: np.zeros_like(value) for name, value in self.w.items()}
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.damping, self.kl_clip, self.decay = damping, kl_clip, decay
        self.factor_interval, self.inverse_interval = factor_interval, inverse_interval
        self.t = self.updates = 0
        self.factors: dict[str, np.ndarray] = {}
        self.blocks: dict[str, np.ndarray] = {}

    def backward(self, token: int, cotangent: np.ndarray | None, target: np.ndarray) -> dict[str, np.ndarray]:
        """Inputs of both matrices, and what comes back to them from ``cotangent``, or from the loss."""
        embedding, weight, scale = self.w["E"], self.w["W"], self.w["c"]
        x = np.append(embedding[token], 1.0)
        h = np.tanh(weight @ x)
        s = scale * h
        back = embedding @ s - target if cotangent is None else cotangent
        back_s = embedding.T @ back
        back_pre = back_s * scale * (1 - h**2)
        return {"x": x, "s": s, "y": back, "pre": back_pre, "e": weight[:, :-1].T @ back_pre, "c": back_s * h}

    def step(self, tokens: np.ndarray, targets: np.ndarray, vectors: np.ndarray) -> None:
        count = len(tokens)
        if self.t % self.factor_interval == 0:
            self.measure(tokens, targets, vectors)
        if self.t % self.inverse_interval == 0:
            self.build()
        self.t += 1
        gradient = {name: np.zeros_like(value) for name, value in self.w.items()}
        for token, target in zip(tokens, targets, strict=True):
            seen = self.backward(token, None, target)
            gradient["E"] += np.outer(seen["y"], seen["s"]) / count
            gradient["E"][token] += seen["e"] / count
            gradient["W"] += np.outer(seen["pre"], seen["x"]) / count
            gradient["c"] += seen["c"] / count
        update, square = {}, 0.0
        for name in self.w:
            self.m[name] = self.momentum * self.m[name] + (1 - self.momentum) * gradient[name]
            if name == "c":
                update[name] = self.m[name] / (self.factors["c"] + self.damping)
            else:
                update[name] = np.linalg.solve(self.blocks[name], self.m[name].flatten()).reshape(self.m[name].shape)
            square += self.lr**2 * float((self.m[name] * update[name]).sum())
        shorter = min(1.0, np.sqrt(self.kl_clip / square))
        for name in self.w:
            self.w[name] = (1 - self.lr * self.weight_decay) * self.w[name] - shorter * self.lr * update[name]

    def measure(self, tokens: np.ndarray, targets: np.ndarray, vectors: np.ndarray) -> None:
        """Averages of all factors."""
        width, rows, count = len(self.w["c"]), len(self.w["E"]), len(tokens)
        new = {
            "W rows": np.zeros((width, width)),
            "W columns": np.zeros((width + 1, width + 1)),
            "head rows": np.zeros((rows, rows)),
            "head columns": np.zeros((width, width)),
            "embedding rows": np.zeros((rows, rows)),
            "embedding columns": np.zeros((width, width)),
        }
        pulled = np.zeros(width)
        for token, target, vector in zip(tokens, targets, vectors, strict=True):
            seen = self.backward(token, vector, target)
            new["W rows"] += np.outer(seen["pre"], seen["pre"]) / count
            new["W columns"] += np.outer(seen["x"], seen["x"]) / count
            new["head rows"] += np.outer(seen["y"], seen["y"]) / count
            new["head columns"] += np.outer(seen["s"], seen["s"]) / count
            new["embedding rows"][token, token] += 1 / count
            new["embedding columns"] += np.outer(seen["e"], seen["e"]) / count
            pulled += seen["c"]
        new["c"] = pulled**2 / count
        self.updates += 1
        decay = min(1 - 1 / self.updates, self.decay)
        for name, value in new.items():
            self.factors[name] = decay * self.factors.get(name, np.zeros_like(value)) + (1 - decay) * value

    def build(self) -> None:
        """The damped blocks, with rows before columns as in a flattened matrix."""
        self.blocks["W"] = self.damped("W")
        self.blocks["E"] = self.damped("head") + np.kron(
            self.factors["embedding rows"], self.factors["embedding columns"]
        )

    def damped(self, name: str) -> np.ndarray:
        rows, columns = self.factors[f"{name} rows"], self.factors[f"{name} columns"]
        balance = np.sqrt((np.trace(rows) / len(rows)) / (np.trace(columns) / len(columns)))
        root = np.sqrt(self.damping)
        return np.kron(rows + balance * root * np.eye(len(rows)), columns + root / balance * np.eye(len(columns)))
