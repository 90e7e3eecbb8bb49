"""Numbered patches of the files that a host keeps. What a release has shipped is never edited: a change adds one."""
