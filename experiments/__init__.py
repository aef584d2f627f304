"""The paper's measurements and other one-time work, as scripts over the public API. The package never imports them."""
