"""Make the deltas that the package ships for named models: pack, train and write them."""
