"""The web console: pages made here, of answers of this very API with the visitor's own token (S-35)."""
