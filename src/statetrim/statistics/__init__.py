"""All statistics that the package defines. A method's file may define another: see `Statistic`."""

from .activations import KEY_STATISTICS, STATE_STATISTICS
from .readouts import READOUT_STATISTICS, REFIT_STATISTICS
from .statistic import Statistic

STATISTICS: dict[str, Statistic] = {
    statistic.name: statistic
    for statistic in (*KEY_STATISTICS, *STATE_STATISTICS, *READOUT_STATISTICS, *REFIT_STATISTICS)
}
