"""Losses on plain tensors, for any PyTorch training loop. Training in triptych uses the same classes as objectives.

    from triptych.losses import InfoNCE
    loss = InfoNCE()
    loss(a, b).backward()  # embeddings a and b (N, D): row i of a and row i of b belong together

`Objective.forward` documents the inputs of all classes. The functions compute one term from scores or embeddings. The
similarities are for the argument `similarity` of the classes.
"""

from triptych.objectives.align_uniform import AlignUniform, align_loss, uniform_loss
from triptych.objectives.contrastive import Contrastive, contrastive_loss
from triptych.objectives.distill import Distill, class_kl_divergence, score_cross_entropy
from triptych.objectives.infonce import InfoNCE, infonce_loss
from triptych.objectives.matching import Matching
from triptych.objectives.objective import Objective
from triptych.objectives.sigmoid import Sigmoid, sigmoid_loss
from triptych.objectives.triplet import Triplet, triplet_loss
from triptych.similarities.cosine import Cosine
from triptych.similarities.dot import Dot
from triptych.similarities.mahalanobis import Mahalanobis
from triptych.similarities.matchmap import Matchmap
from triptych.similarities.word_region import WordRegion

__all__ = ["AlignUniform", "Contrastive", "Distill", "InfoNCE", "Matching", "Objective", "Sigmoid", "Triplet"]
__all__ += ["Cosine", "Dot", "Mahalanobis", "Matchmap", "WordRegion"]
__all__ += ["align_loss", "class_kl_divergence", "contrastive_loss", "infonce_loss", "score_cross_entropy"]
__all__ += ["sigmoid_loss", "triplet_loss", "uniform_loss"]
