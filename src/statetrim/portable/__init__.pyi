"""The public names; `__init__.py` imports each on first use."""

from .configs import DeltaNetConfig as DeltaNetConfig
from .configs import GatedDeltaNetConfig as GatedDeltaNetConfig
from .configs import KDAConfig as KDAConfig
from .models import DeltaNetForCausalLM as DeltaNetForCausalLM
from .models import DeltaNetModel as DeltaNetModel
from .models import GatedDeltaNetForCausalLM as GatedDeltaNetForCausalLM
from .models import GatedDeltaNetModel as GatedDeltaNetModel
from .models import KDAForCausalLM as KDAForCausalLM
from .models import KDAModel as KDAModel
from .models import register as register
