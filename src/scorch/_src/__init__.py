"""The implementation of Scorch; users import nothing from here."""
