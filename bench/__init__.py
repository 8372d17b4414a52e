"""Benchmarks of speed and memory against other libraries: python -m bench [NAME …]"""
