"""Which tokens of a thinking the large model reads (Section 5.3 and Appendix B.7). README.md has the commands."""
