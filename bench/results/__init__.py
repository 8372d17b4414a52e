"""Results of the recipes on real data, one page each: python -m bench results [RECIPE …]"""
