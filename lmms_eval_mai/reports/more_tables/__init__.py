"""Tables that the paper lacks: what a careful reader asks about a cascade."""
