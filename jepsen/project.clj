(defproject jepsen.holdfast "0.1.0"
  :description "Jepsen tests of Holdfast through its NBD exports, its command line and a PostgreSQL on it."
  :dependencies [[org.clojure/clojure "1.12.5"]
                 [org.clojure/data.generators "1.1.1"]
                 [org.clojure/tools.logging "1.3.1"]
                 [jepsen "0.3.11"]
                 [elle "0.2.6"]
                 [knossos "0.3.15"]
                 [org.clj-commons/slingshot "0.13.0"]
                 [org.postgresql/postgresql "42.7.7"
                  :exclusions [org.checkerframework/checker-qual]]]
  :main jepsen.holdfast.cli
  :jvm-opts ["-Xmx3g" "-Djava.awt.headless=true"]
  :repl-options {:init-ns jepsen.holdfast.cli})
