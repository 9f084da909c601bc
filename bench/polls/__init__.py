"""Many supervisors on one controller: memory, CPU, and how long news takes to reach all of them."""
