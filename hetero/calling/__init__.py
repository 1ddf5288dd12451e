"""How a call of any operation is planned and run.

What is remembered is dropped when what it depends on changes. Each change invalidates:

    devices come, or break, or the process is forked -> their descriptions
    descriptions, or which devices are disabled      -> plans and remembered calls
    the machine's profile                            -> plans and remembered calls
    loops on the CPU are compiled                    -> plans and remembered calls
"""

from hetero import devices, profile
from hetero.host import loops
from hetero.pricing import tables
from hetero.profile import inventory

devices.on_change(inventory.changed)
inventory.on_change(tables.forget)
loops.on_ready(tables.forget)
profile.on_change(tables.forget)
