"""Dead sets: list and group dead letters, replay, drop, export and restore them."""

from .acts import ActResult as ActResult
from .audit import Audit as Audit
from .exports import read_export as read_export
from .exports import to_record as to_record
from .letters import EVERYTHING as EVERYTHING
from .letters import DeadLetter as DeadLetter
from .letters import LetterFilter as LetterFilter
from .letters import LetterGroup as LetterGroup
from .letters import LetterSummary as LetterSummary
from .replay import ReplayChanges as ReplayChanges
from .replay import ReplayOptions as ReplayOptions
from .sets import Chosen as Chosen
from .sets import DeadSets as DeadSets
from .sets import IdsBySet as IdsBySet
from .sets import ids_by_set as ids_by_set
from .shards import OnWarning as OnWarning
