"""Why a kernel takes as long as it does: probes of the memories, what limits a rung, and fits by
execution metrics."""
