"""What a site says of its data and its training, on its own command line only. Nothing here may
import torch: `--help` is made from it."""

from dataclasses import dataclass

from idiolect.core import augmentation, own_code
from idiolect.core.fields import Checked, hyper
from idiolect.errors import UserError


@dataclass(frozen=True)
class SiteOptions(Checked):
    """Own code that is named here is allowed to run here, and nowhere else."""

    task: str | None = hyper(
        None,
        "what y is: classification (a class), multilabel, regression, next-token or sequence; the "
        "same at every site",
    )
    metric: str | None = hyper(
        None, "what sites are judged by (idiolect list metrics), or file.py:function"
    )
    codes: str | None = hyper(
        None,
        "how many values whole numbers of x have in the federation: one number for tokens, or one "
        "per column (0: a quantity), e.g. 3,0,0",
    )
    padded: bool = hyper(False, "whether sequences are filled up with 0, which is no token")
    loss: str | None = hyper(None, "this site's own loss: file.py:function")
    augment: str | None = hyper(
        None, "changes of this site's training batches: flip, crop, noise or file.py:function"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss is not None and not own_code.is_function(self.loss):
            raise UserError(f"--loss '{self.loss}' must be file.py:function or module:function")
        for name in ("metric", "loss"):
            if own_code.is_own(given := getattr(self, name)):
                object.__setattr__(self, name, own_code.whole(given))
        if self.augment is not None:
            object.__setattr__(self, "augment", augmentation.written(self.augment))
