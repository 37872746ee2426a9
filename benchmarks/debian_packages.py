"""Debian's packages whose texts benchmarks.debian_texts reads, in groups.

Selections are explored on texts of the first group; the others are for corpora that are looked at
once.
"""

from typing import NamedTuple

MANUALS = """
    erlang-manpages git-man libssl-doc manpages manpages-dev ncurses-doc openmpi-doc perl-doc
    tcl8.6-doc tk8.6-doc
"""
DOCUMENTATION = """
    apache2-doc cmake-doc debian-handbook debian-policy debian-reference-en git-doc libglib2.0-doc
    libgtk-3-doc libreoffice-help-en-us linux-doc-6.1 octave-doc postfix-doc postgresql-doc-15
    python-django-doc python-sqlalchemy-doc python3.11-doc sqlite3-doc
"""
OTHER_MANUALS = """
    libcurl4-doc libmojolicious-perl libmoose-perl libx11-doc libxcb-doc lvm2 mpich-doc netpbm
    systemd tcllib
"""
OTHER_DOCUMENTATION = """
    abs-guide anarchism bind9-doc buildbot-doc developers-reference doxygen-doc exim4-doc-html
    fp-docs-3.2.2 frr-doc krb5-doc lemonldap-ng-doc maxima-doc nodejs-doc nut-doc postgis-doc
    python-celery-doc python-pandas-doc python-scrapy-doc shorewall-doc slurm-wlm-doc swi-prolog-doc
    weechat-doc xapian-doc
"""
THIRD_MANUALS = """
    ceph-common freebsd-manpages inn2 iproute2 libbio-perl-perl libcatalyst-perl libdbi-perl
    libdbix-class-perl libibverbs-dev libperl-critic-perl libplack-perl libpoe-perl libppi-perl
    librose-db-object-perl nmap samba util-linux xfsprogs zsh-common
"""
THIRD_DOCUMENTATION = """
    ant-doc borgbackup-doc csound-doc derby-doc dpdk-doc gap-doc graphviz-doc icinga2-doc icu-doc
    imagemagick-6-doc ironic-doc kea-doc keystone-doc kicad-doc-en knot-resolver-doc
    libboost1.81-doc libstdc++-12-doc lilypond-doc-html linuxcnc-doc-en llvm-16-doc neutron-doc
    nim-doc nova-doc ntpsec-doc openafs-doc pari-doc pcp-doc pike8.0-doc pipewire-doc povray-doc
    python-biopython-doc python-dask-doc python-djangorestframework-doc python-statsmodels-doc
    python-sympy-doc python-xarray-doc qtbase5-doc-html renpy-doc rsyslog-doc rust-doc scons-doc
    singular-doc snakemake-doc sphinx-doc swift-doc tomcat10-docs topcat-doc twisted-doc uima-doc
    wx3.2-doc
"""
FOURTH_MANUALS = """
    allegro5-doc btrfs-progs coreutils libanyevent-perl libbio-perl-run-perl
    libcatalyst-manual-perl libconfig-model-perl libcryptx-perl libdancer2-perl
    libdate-manip-perl libdatetime-perl libdist-zilla-perl libffi-platypus-perl
    libgraph-easy-perl libgstreamer1.0-dev libhtml-formfu-perl libhtml-formhandler-perl
    libhtml-mason-perl libhwloc-doc libimage-exiftool-perl libimager-perl liblog-log4perl-perl
    libmail-box-perl libmail-message-perl libmarpa-r2-perl libmath-planepath-perl
    libnet-dns-perl libnet-ldap-perl libpdf-api2-perl libpdf-builder-perl libsdl-perl
    libsql-translator-perl libtemplate-perl libtest-simple-perl libtest2-harness-perl
    libtest2-suite-perl libtype-tiny-perl libur-perl libvm-ec2-perl libxml-libxml-perl
"""
FOURTH_DOCUMENTATION = """
    argyll-doc autoconf-doc bacula-doc barbican-doc bird2-doc cinder-doc
    cppreference-doc-en-html db5.3-doc dcmtk-doc designate-doc erlang-doc ffmpeg-doc fltk1.3-doc
    freetype2-doc ganeti-doc ghc-doc ghostscript-doc glance-doc glibc-doc gnuplot-doc
    gnuradio-doc gnutls-doc gsoap-doc haproxy-doc heat-doc lammps-doc libeigen3-doc libgtk-4-doc
    libsdl2-doc libsvn-doc libvirt-doc manila-doc mit-scheme-doc ngspice-doc octavia-doc
    ogre-1.12-doc openjdk-17-doc openvswitch-doc placement-doc proftpd-doc python-ase-doc
    python-astropy-doc python-dipy-doc python-distributed-doc python-ipython-doc
    python-lmfit-doc python-mdanalysis-doc python-notebook-doc python-openstacksdk-doc
    python-pygame-doc python-pytest-doc python-qutip-doc python-rdflib-doc python-silx-doc
    python-tables-doc python-vispy-doc qtcharts5-doc-html qtcreator-doc qtdeclarative5-doc-html
    rdkit-doc scala-doc scilab-doc senlin-doc swig4.0-doc wireshark-doc
"""
FIFTH_DOCUMENTATION = """
    ada-reference-manual-2012 cargo-web-doc debian-edu-doc-en dynare-doc freedombox-doc-en
    gimp-help-en gnucash-docs grass-doc groovy-doc installation-guide-amd64 lazarus-doc-2.2 ns3-doc
    openms-doc pacemaker-doc petsc3.18-doc python-gevent-doc python-pymatgen-doc python-scipy-doc
    python-sfepy-doc python-skimage-doc python-sklearn-doc racket-doc regina-normal-doc
    rt5-doc-html uhd-doc weka-doc
"""
SIXTH_MANUALS = """
    amavisd-new apt aptitude bash blt-dev bpftool bpftrace buildah corosync crash cyrus-common
    debhelper devscripts dgit dpkg-dev exim4-base fai-client flatpak freeipmi-tools gdal-bin gdb
    git-annex git-buildpackage glusterfs-client gnupg gpg gpgsm infiniband-diags iptables
    itcl3-doc ldap-utils libarchive-dev libattean-perl libbio-chado-schema-perl libbsd-dev
    libcatmandu-perl libcdk5-dev libcod-tools-perl libdbd-mysql-perl libdbd-pg-perl
    libdbd-sqlite3-perl libdpkg-perl libexcel-writer-xlsx-perl libfabric-dev libfont-ttf-perl
    libgd-perl libglib-perl libgraph-perl libgtk3-perl libguestfs-perl libguestfs-tools
    libhtml-template-perl libhtml-tree-perl libintl-perl libldap-dev liblocale-codes-perl
    liblog-any-perl libmath-prime-util-perl libmce-perl libmodule-build-perl libmongodb-perl
    libmotif-dev libnet-ssleay-perl libowfat-dev libpam-doc libpar-packer-perl libpcre2-dev
    libpmem-dev libpmemobj-dev libpublicinbox-perl librdf-query-perl libsdl1.2-dev
    libsearch-elasticsearch-perl libselinux1-dev libsnmp-info-perl
    libspreadsheet-writeexcel-perl libssh2-1-dev libsvn-perl libsys-virt-perl libtest-deep-perl
    libtiff-dev libtool liburing-dev libverilog-perl libvirt-clients libwww-perl libwx-perl
    libxml-twig-perl linux-perf live-build lttng-tools lxc mailutils mdadm mercurial
    multipath-tools mutt ndctl neomutt nftables notmuch nvme-cli opendkim openssh-client ostree
    ovn-common passwd pdl perl-tk podman policycoreutils postgresql-client-15 pvm-dev
    qemu-system-common qemu-utils reprepro rpm sbuild skopeo slapd sox spamassassin stgit strace
    sudo systemtap systemtap-doc tcsh tmux trace-cmd valgrind x11-utils x11-xserver-utils
"""
SIXTH_DOCUMENTATION = """
    antlr4-doc aodh-doc asymptote-doc augeas-doc awesome-doc beets-doc brz-doc cdist-doc
    ceilometer-doc chezscheme-doc clisp-doc cmucl-docs coinor-libipopt-doc cyclonedds-doc
    dar-docs dbus-1-doc deap-doc debmake-doc denemo-doc diskimage-builder-doc docutils-doc
    dx-doc emscripten-doc fontforge-doc freezer-doc gammu-doc gcl-doc geographiclib-doc
    gettext-doc gmsh-doc gnome-devel-docs gnumeric-doc gnustep-base-doc gnustep-gui-doc
    gradle-doc harden-doc jpeg-xl-doc kile-doc kitty-doc lava-server-doc libcoap3-doc libdap-doc
    libexiv2-doc libgda-5.0-doc libglibmm-2.4-doc libmbedtls-doc libnghttp2-doc libssh-doc
    liggghts-doc lirc-doc mailman3-doc mapproxy-doc masakari-doc mir-doc morse-simulator-doc
    mplayer-doc murano-doc mypy-doc numba-doc omniorb-doc openscap-doc ovn-doc pcb-rnd-doc
    pylint-doc pypy3-doc python-ara-doc python-astroquery-doc python-asyncssh-doc
    python-behave-doc python-brian-doc python-bumps-doc python-can-doc python-cherrypy3-doc
    python-cogent-doc python-discord-doc python-ezdxf-doc python-flask-doc python-fluids-doc
    python-fonttools-doc python-gitlab-doc python-guiqwt-doc python-hypothesis-doc
    python-ipyparallel-doc python-ironicclient-doc python-keystoneauth1-doc
    python-keystoneclient-doc python-kombu-doc python-libpysal-doc python-lxml-doc
    python-mdtraj-doc python-mpi4py-doc python-mpmath-doc python-nibabel-doc python-nipy-doc
    python-nipype-doc python-nitime-doc python-novaclient-doc python-openstackclient-doc
    python-os-ken-doc python-oslo.config-doc python-oslo.db-doc python-peewee-doc
    python-petsc4py-doc python-pil-doc python-pwntools-doc python-pydicom-doc python-pymongo-doc
    python-pyqtgraph-doc python-pyswarms-doc python-pyvmomi-doc python-ruffus-doc
    python-sasmodels-doc python-selenium-doc python-simpy-doc python-skbio-doc
    python-slixmpp-doc python-sqlobject-doc python-sushy-doc python-tango-doc
    python-taskflow-doc python-taurus-doc python-tornado-doc python-ubelt-doc
    python-werkzeug-doc python-whoosh-doc python3-aioxmpp-doc python3-cassandra-doc
    python3-matrix-nio-doc python3-python-telegram-bot-doc python3-stem-doc qtlocation5-doc-html
    qtmultimedia5-doc-html qtquickcontrols2-5-doc-html r-doc-html ruby3.1-doc sbcl-doc
    slepc3.18-doc snd-doc solfege-doc speech-tools-doc stilts-doc swupdate-doc systemtap-doc
    texstudio-doc therion-doc translate-toolkit-doc trove-doc udisks2-doc vim-doc vitrage-doc
    wand-doc watcher-doc xen-doc xonsh-doc yade-doc yard-doc zoneminder-doc zsh-doc
"""
SIXTH_DOCSTRINGS = """
    python3-altair python3-boto python3-breezy python3-brian python3-cogent3 python3-datalad
    python3-ezdxf python3-falcon python3-fluids python3-fonttools python3-galpy python3-gammapy
    python3-gensim python3-ginga python3-igraph python3-imageio python3-jedi python3-kivy
    python3-libcloud python3-libpysal python3-matplotlib python3-mdtraj python3-mne python3-mypy
    python3-neo python3-nibabel python3-nipype python3-nltk python3-numba python3-plastex
    python3-prody python3-pydicom python3-pyglet python3-pyqtgraph python3-samba python3-scapy
    python3-scikit-rf python3-skbio python3-skyfield python3-stdnum python3-sunpy
    python3-traitsui python3-translate python3-vedo python3-wxgtk4.0 python3-zarr
"""


class Group(NamedTuple):
    """Names of packages: with manual pages, with HTML documentation, with modules of Python.

    Without the last, docstrings are those of the demo's corpus.
    """

    manuals: str
    documentation: str
    docstrings: str = ""


PACKAGES = {
    "first": Group(MANUALS, DOCUMENTATION),
    "other": Group(OTHER_MANUALS, OTHER_DOCUMENTATION),
    "third": Group(THIRD_MANUALS, THIRD_DOCUMENTATION),
    "fourth": Group(FOURTH_MANUALS, FOURTH_DOCUMENTATION),
    "fifth": Group("", FIFTH_DOCUMENTATION),
    "sixth": Group(SIXTH_MANUALS, SIXTH_DOCUMENTATION, SIXTH_DOCSTRINGS),
}
