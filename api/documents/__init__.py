"""What the API answers with, by what it is of."""
