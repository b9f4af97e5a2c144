"""What gateway and controller write into a platform's objects, and how they read it back: labels, annotations, resource
names, quantities; and how seconds are shown to people. A leaf: it imports no other room, and neither of the two imports
the other."""
