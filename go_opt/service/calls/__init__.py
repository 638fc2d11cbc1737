"""How a call is admitted, counted, stopped and answered."""
