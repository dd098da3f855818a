"""A sweep predicted from its model's measured spectrum."""

from analysis.questions.prediction.question import predict
from analysis.questions.prediction.result import Prediction, Predictions, Variation

__all__ = ["Prediction", "Predictions", "Variation", "predict"]
