# The specs ask Bundler for what is on the load path anyway.
module Bundler
  def self.require(*) = nil
end
