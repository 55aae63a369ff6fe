"""What goes on inside of networks: functions that return tensors, and a recorder of them."""
