"""Why a kernel takes as long as it does: probes of the memories, and what limits a rung."""
