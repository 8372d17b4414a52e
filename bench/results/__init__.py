"""Every recipe run for real, one page each: python -m bench results [RECIPE …]"""
