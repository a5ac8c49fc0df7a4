# What `single.pl` runs again and again.


c_in_required($main::number);
