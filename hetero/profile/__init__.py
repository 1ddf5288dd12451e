"""The profile: one machine's fitted constants, versioned, checksummed, stored atomically.

A profile is one JSON file::

    schema_version   int
    name, created    str
    units            what the numbers are in: seconds, bytes, flops
    fingerprint      the machine it was measured on (see `hetero.profile.inventory.fingerprint`)
    devices          device name -> description, as `hetero.machine()` gives it
    links            device name -> {"upload", "download"} -> {"pageable", "pinned"} -> model;
                     optional: "staged", pageable memory through pinned buffers, taken from the size
                     on where it is faster; and "cuda*2" for a device name, two at once with that
                     number of bytes each, also "peer" -> {"device"}, what each has from another.
                     What is not there is as it is alone
    host             {"pack": model, "dispatch": {device: {case: seconds}}}: copies within the
                     host's memory, and the host's work around one call on a device
    load, stages     how busy other work kept the machine meanwhile; seconds of each stage
    models           "device|operation|method|dtype|layout" -> model
    sha256           of everything above

and a model is ``{"form", "constants", "residuals"}`` (`hetero.registry.models`); a link's has
"samples", but in profiles that come with hetero; one of several devices may have "moves_apart":
true, if what is moved to them and back is not in it. A device written as "cuda:*" stands for every
device of that kind, a layout "*" for every layout, "C" for "C aligned" and "C odd", "* odd" for
everything odd. `inventory` is this machine, `constants` its profile.
"""

from hetero.profile.constants import PAGEABLE as PAGEABLE
from hetero.profile.constants import PINNED as PINNED
from hetero.profile.constants import SCHEMA_VERSION as SCHEMA_VERSION
from hetero.profile.constants import STAGED as STAGED
from hetero.profile.constants import UNITS as UNITS
from hetero.profile.constants import Profile as Profile
from hetero.profile.constants import Stored as Stored
from hetero.profile.constants import current as current
from hetero.profile.constants import encode as encode
from hetero.profile.constants import held as held
from hetero.profile.constants import named as named
from hetero.profile.constants import parse as parse
from hetero.profile.constants import read as read
from hetero.profile.constants import set_current as set_current
from hetero.profile.constants import shipped as shipped
from hetero.profile.constants import survey as survey
from hetero.profile.inventory import default_path as default_path
from hetero.profile.inventory import obstacle as obstacle
from hetero.profile.inventory import place as place
