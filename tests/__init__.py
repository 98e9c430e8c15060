"""Tests of crumpets-like."""
