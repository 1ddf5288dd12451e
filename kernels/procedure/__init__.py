"""White's procedure: execution metrics of a launch, and launch parameters that follow from them."""
