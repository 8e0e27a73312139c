"""kafka-python 3 reads its schemas with a call that Python 3.11 deprecates: import it once with that warning off."""

from __future__ import annotations

import importlib
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    for _name in ("kafka", "kafka.protocol.producer", "kafka.protocol.consumer", "kafka.protocol.sasl"):
        importlib.import_module(_name)
