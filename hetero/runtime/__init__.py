"""How a call is decided and carried out, whatever the operation.

What is remembered is forgotten when that which it was made from changes. Who tells whom:

    devices come, or break, or the process is forked -> their descriptions
    descriptions, or which devices are disabled      -> plans and remembered calls
    the machine's profile                            -> plans and remembered calls
    loops on the CPU are compiled                    -> plans and remembered calls
"""

from hetero import devices
from hetero.devices import loop_compiler
from hetero.runtime import call_cache, inventory, profile

devices.on_change(inventory.changed)
inventory.on_change(call_cache.forget)
loop_compiler.on_ready(call_cache.forget)
profile.on_change(call_cache.forget)
loop_compiler.on_ready(call_cache.forget)
