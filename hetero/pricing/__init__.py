"""Every way to do a problem priced by a profile: candidates and plans. Names no operation."""
